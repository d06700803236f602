"""Raw reads of one machine, made into facts. Imports nothing else of this project."""
