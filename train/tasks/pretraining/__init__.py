"""Parts of BERT's pre-training: documents, pairs, masks, shards, two heads."""
