"""The program that a run's workers execute: Muster's trainer, or the user's own."""
