"""Join models into a cascade that is as accurate as the last and nearly as fast as the first: ``compress cascade``."""
