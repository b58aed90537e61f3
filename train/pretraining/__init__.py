"""What BERT's pre-training is made of: documents, pairs, masks, shards and the two heads."""
