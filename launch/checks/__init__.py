"""What is wrong with the nodes, found before anything starts; each finding says what to do."""
