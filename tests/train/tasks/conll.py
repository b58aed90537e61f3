"""A small data set of named entities in CoNLL's format, and the words of its vocabulary."""

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] Ann Bo ##b ##by saw in York New . the".split()
TRAIN = """-DOCSTART- O

Bobby B-PER
saw O
Ann B-PER
in O
New B-LOC
York I-LOC
. O

Ann B-PER
saw O
York B-LOC
. O

"""
