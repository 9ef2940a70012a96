"""The command `vibe-llms`, a thin layer over the library. Its entry point is `main.main`."""
