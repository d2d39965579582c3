"""How results are shown: sentences, tables, pictures and the page that holds them."""
