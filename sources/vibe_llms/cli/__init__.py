"""The command `vibe-llms`: a thin face on the library. `main.main` is where it begins."""
