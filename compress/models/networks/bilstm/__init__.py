RANK = 3
SPACE = {
    "embedding_size": (50, 100, 200, 300),
    "hidden_size": (32, 64, 150, 300),
    "dense_size": (50, 200, 400),
    "minimum_count": (20, 5, 2),
}
