"""Find problems with the nodes before anything starts; each finding says what to do."""
