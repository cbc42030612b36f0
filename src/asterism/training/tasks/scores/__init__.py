"""Scores of answers: plain functions of predictions and right answers, and baselines that need no model."""
