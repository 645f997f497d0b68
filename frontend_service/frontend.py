"""The object that all APIs call: the services on domain types, and the policy of calls. Knows no API."""

from frontend_service.services.classify import ClassificationService
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.services.pipeline import Pipeline
from frontend_service.services.rank import RankingService
from shared.server.calls import Calls


class Frontend:
    """The services, and the policy of calls.

    An API admits each call by `calls`. Then it reads the message, calls a service, and writes the reply: the first and
    the last by `pipeline`, in a thread where there is much to read or to write, so that these functions may touch
    nothing but their arguments.
    """

    def __init__(self, pipeline: Pipeline, calls: Calls, thread_count: int = 1) -> None:
        """`thread_count`: the number of threads that tokenise."""
        self.pipeline, self.calls, self.thread_count = pipeline, calls, thread_count
        self.limits = pipeline.limits
        self.embedding = EmbeddingService(pipeline)
        self.ranking = RankingService(pipeline)
        self.classification = ClassificationService(pipeline)
        self.models = ModelService(pipeline)
