"""Reports of results as HTML, Markdown and JSON: summary sentences, tables and charts."""
