"""What BERT's pre-training is made of: documents, pairs, masks, shards, two heads."""
