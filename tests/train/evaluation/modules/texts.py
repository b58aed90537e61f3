"""How many words of texts are among those of several references; `sources` has to be there, too."""

import datasets
import evaluate


class Texts(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="",
            citation="",
            features=datasets.Features(
                {"predictions": text, "references": datasets.Sequence(text), "sources": text}
            ),
        )

    def _compute(self, predictions, references, sources, lower=False):
        change = str.lower if lower else str
        found = [
            change(word) in map(change, " ".join(right).split())
            for text, right in zip(predictions, references, strict=True)
            for word in text.split()
        ]
        return {"overlap": sum(found) / len(found), "first": sources[0], "all": "|".join(sources)}
