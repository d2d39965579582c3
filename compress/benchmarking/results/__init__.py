"""Result lines: their schema, their files, and what is computed from them."""
