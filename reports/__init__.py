"""The faces of an assessment. They show, and compute nothing. Imports `checks` and `probe`, and nothing else of this project."""
