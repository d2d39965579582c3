"""ONNX graphs of others, before any library opens them: where they lie, and which operators they have.

A graph is data, and a program too: ``Loop`` runs as long as it says, functions of a graph multiply each other, and
some operators open files. Those that classifiers are written with are listed here; a graph with another one, or with
a graph inside a node, is refused. What is listed can still fill the memory: the runtime opens it within bounds
(``compress/inference/runtimes/_onnx_session.py``). The file is read as protobuf, field by field and without its
weights, because the package ``onnx`` is not there in the light installation.
"""

import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path

from compress.errors import CompressError
from compress.files import faults_of
from compress.models.manifest import ONNX_NAME

# What torch, Optimum, transformers.js, skl2onnx, the optimiser of ONNX Runtime, quantizers and this project write.
_STANDARD = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitCast BitShift
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike CausalConvWithState Ceil Celu Clip Compress Concat
    ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace
    DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual
    GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LSTM LayerNormalization
    LeakyRelu Less LessOrEqual LinearAttention Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool
    Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul
    QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Relu Reshape Resize ReverseSequence
    RotaryEmbedding Round Scatter ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength Shape Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh Size
    Slice Softmax Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze StringConcat StringNormalizer
    StringSplit Sub Sum SwiGLU Swish Tan Tanh TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze
    Upsample Where Xor
"""
_LEARNING = """
    ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder
    LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor ZipMap
"""
_MICROSOFT = """
    Attention AttnLSTM BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskDropout CDist
    DecoderMaskedMultiHeadAttention DequantizeBFP DequantizeLinear DequantizeWithOrder DynamicQuantizeLSTM
    DynamicQuantizeMatMul EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul
    FusedMatMulActivation GatedRelativePositionBias GatherBlockQuantized GatherND Gelu GemmFastGelu GemmFloat8
    GroupQueryAttention LongformerAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits
    MoE MulInteger MultiHeadAttention NhwcFusedConv PackedAttention PackedMultiHeadAttention Pad QAttention
    QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
    QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QMoE QOrderedAttention
    QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul QuantizeBFP QuantizeLinear
    QuantizeWithOrder QuickGelu Range ReduceSumInteger RelativePositionBias RemovePadding RestorePadding RotaryEmbedding
    SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention
    SparseToDenseMatMul Tokenizer TransposeMatMul Trilu Unique WordConvEmbedding
"""
OPERATORS = {
    **dict.fromkeys(("", "ai.onnx"), frozenset(_STANDARD.split())),
    "ai.onnx.ml": frozenset(_LEARNING.split()),
    "com.microsoft": frozenset(_MICROSOFT.split()),
}
MOST_NODES = 100_000
_UNUSUAL = "has {}, which no classifier is written with, and may run without an end; export the model again"
INPUTS, OUTPUT = frozenset({"input_ids", "attention_mask", "token_type_ids"}), "logits"
# Numbers of fields in onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODE, _GRAPH_WEIGHT, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN, _ATTRIBUTE_GRAPHS = 4, 5, 7, frozenset({6, 11})
_NAMES = {_GRAPH_NODE: 3, _GRAPH_WEIGHT: 8, _GRAPH_INPUT: 1, _GRAPH_OUTPUT: 1}
_VARINT, _BYTES, _SIZES = 0, 2, {1: 8, 5: 4}  # kinds of fields, and bytes of those of a fixed size


def graph_file(directory: Path) -> Path:
    """Return the graph that a directory answers with: ``model.onnx``, or the only one where there are no weights.

    Others lay them otherwise: ``onnx/model.onnx``, ``onnx/model_quantized.onnx`` or ``model_quantized.onnx`` (Optimum,
    transformers.js).
    """
    own = directory / ONNX_NAME
    if own.is_file() or any(directory.glob("*.safetensors")):
        return own
    found = found_graphs(directory)
    return found[0] if len(found) == 1 else own


def found_graphs(directory: Path) -> list[Path]:
    """Return all ONNX graphs of a directory, at the places that others use."""
    return sorted([*directory.glob("*.onnx"), *directory.glob("onnx/*.onnx")])


def graph_with_data(graph: Path) -> list[Path]:
    """Return a graph and the files beside it that hold its weights."""
    return sorted(graph.parent.glob(f"{graph.name}*"))


def copy_graph(graph: Path, target: Path) -> None:
    """Copy a graph into a directory as its ``model.onnx``; its data keep the names by which it knows them."""
    for file in graph_with_data(graph):
        shutil.copyfile(file, target / (ONNX_NAME if file == graph else file.name))


def check_graph(path: Path) -> None:
    """Refuse an ONNX file that is no classifier of token ids, or has what no classifier is written with.

    Raises:
        CompressError: it has other inputs or outputs, too many nodes, another operator or a graph inside a node, or is
            no ONNX file.
    """
    with faults_of(path, "an ONNX graph"), path.open("rb") as file:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = _refusal(content)
    if found:
        raise CompressError(f"{path} {found}")


def _refusal(content: mmap.mmap) -> str:
    """Return what is wrong with a graph; empty where all is right."""
    names: dict[int, list[str]] = {field: [] for field in _NAMES}
    for number, start, end in _fields(content, 0, len(content)):
        if number == _MODEL_FUNCTIONS:
            return _UNUSUAL.format("functions of its own")
        for field, *place in _fields(content, start, end) if number == _MODEL_GRAPH else ():
            if field in _NAMES:
                names[field].append(_text(content, _NAMES[field], *place))
            if field == _GRAPH_NODE and (unusual := _unusual(content, *place)):
                return _UNUSUAL.format(unusual)
    if (nodes := len(names[_GRAPH_NODE])) > MOST_NODES:
        return _UNUSUAL.format(f"{nodes:,} nodes")
    inputs, outputs = {*names[_GRAPH_INPUT]} - {*names[_GRAPH_WEIGHT]}, {*names[_GRAPH_OUTPUT]}
    if {"input_ids"} <= inputs <= INPUTS and OUTPUT in outputs:
        return ""
    has = " and ".join(", ".join(sorted(some))[:200] or "none" for some in (inputs, outputs))
    return (
        f"is no classifier that compress runs: its inputs and outputs are {has}, and not some of "
        f"{', '.join(sorted(INPUTS))} and {OUTPUT}; export the model again, with 'compress export' or Optimum"
    )


def _unusual(content: mmap.mmap, start: int, end: int) -> str:
    """Return what a node has that no classifier is written with; empty where it has nothing."""
    for field, *place in _fields(content, start, end):
        if field == _NODE_ATTRIBUTE and any(part in _ATTRIBUTE_GRAPHS for part, *_ in _fields(content, *place)):
            return "a graph inside a node (Loop, Scan, If)"
    operator, domain = (_text(content, field, start, end) for field in (_NODE_OPERATOR, _NODE_DOMAIN))
    known = operator in OPERATORS.get(domain, ())
    return "" if known else f"the operator {'::'.join(filter(None, (domain, operator)))[:80]!r}"


def _text(content: mmap.mmap, wanted: int, start: int, end: int) -> str:
    """Return the text of a field of a message, of several the last, as protobuf does."""
    found = b""
    for field, begin, stop in _fields(content, start, end):
        if field == wanted:
            found = content[begin:stop]
    return found.decode()


def _fields(content: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a protobuf message that holds bytes: a text or another message."""
    while position < end:
        key, position = _varint(content, position)
        kind, start = key & 7, position
        if kind in {_VARINT, _BYTES}:
            size, start = _varint(content, position)
            position = start + size * (kind == _BYTES)
        else:
            position += _SIZES[kind]
        if position > end:
            raise ValueError("it is cut short")
        if kind == _BYTES:
            yield key >> 3, start, position


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("no protobuf message")
