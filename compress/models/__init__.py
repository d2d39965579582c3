"""Model directories and their manifests; model classes and what is known of their families."""
