RANK = 2
SPACE = {
    "embedding_size": (16, 32, 64, 128),
    "longest": (1, 2, 3, 4),
    "buckets": (10_000, 30_000, 100_000, 200_000),
    "dense_size": (50, 100, 200),
    "minimum_count": (20, 5, 2),
}
