"""What a run's workers execute: the trainer that comes with Muster, or a program of the user's."""
