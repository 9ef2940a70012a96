"""The fault kit: failing system calls, recorded and replayed power cuts, killed processes."""
