"""Reports of a comparison: terminal, Markdown, JSON, one HTML file."""
