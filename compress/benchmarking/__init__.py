"""Benchmark models against their teacher: candidates, worker processes, interleaved rounds, result lines, replay."""
