RANK = 0
SPACE = {
    "embedding_size": (50, 100, 200, 300),
    "filters": (25, 50, 100, 200),
    "widths": ((1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)),
    "second_filters": (0, 64, 128),
    "pooling": ("max", "max-mean"),
    "minimum_count": (20, 5, 2),
}
