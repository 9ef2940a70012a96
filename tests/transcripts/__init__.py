"""Tests of transcripts."""
