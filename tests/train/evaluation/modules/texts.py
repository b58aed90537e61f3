"""Whether each text is one of several references; `sources` is required as well."""

import datasets
import evaluate


class Texts(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        columns = {"predictions": text, "references": datasets.Sequence(text), "sources": text}
        features = datasets.Features(columns)
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references, sources, lower=False):
        change = str.lower if lower else str
        pairs = zip(predictions, references, strict=True)
        matches = [change(text) in map(change, rights) for text, rights in pairs]
        return {"matches": matches, "sources": "|".join(sources), "name": self.config_name}
