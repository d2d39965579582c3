"""Foreign text for property tests: pieces that act somewhere, put together and between any other characters."""

from __future__ import annotations

from hypothesis import strategies as st

ACTING = (
    *"\x00\x07\x08\x1b\x7f\x85\x9b\xad\u061c\u200b\u200e\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\ufffe\uffff\ud800",
    *"|*_~`[]()<>!#$&:-+=.@\"'\\\n\r\t \u00a0\u3000%,",
    *("\x1b[31m", "\x1b]8;;https://example.org\x07", "\udcff", "\U000e0041", "<script>", "</pre>", "]]>", "<!--"),
    *("&lt;", "&#60;", "javascript:alert(1)", "[a](https://example.org)", "![a](b)", "https://a.org", "WWW.a.org"),
    *("a@b.org", "@team", "#123", ":tada:", ":white_check_mark:", "::error::", "##[group]", "##vso[x]", "```", "1. "),
    *("12) ", "---", "===", "\n\n# a", "\n    a", "| a | b |\n|---|---|\n", "[a]: b", "<https://a.org>", "&copy", "\\"),
)
texts = st.lists(st.sampled_from(ACTING) | st.text(max_size=4), max_size=8).map("".join)
