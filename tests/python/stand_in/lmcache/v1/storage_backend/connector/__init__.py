from abc import ABC, abstractmethod


class ConnectorAdapter(ABC):
    def __init__(self, schema):
        self.schema = schema

    def can_parse(self, url):
        return url.startswith(self.schema)

    @abstractmethod
    def create_connector(self, context): ...
