"""otlp.py BODIES: parses each line as an ExportTraceServiceRequest; no field may be unknown.

OTLP's JSON is protobuf's but for the ids, which are hex there and base64 in protobuf's own.
"""
import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

spans = 0
names = set()
for line in open(sys.argv[1]):
    body = json.loads(line)
    for group in body['resourceSpans']:
        for scope in group['scopeSpans']:
            for span in scope['spans']:
                for key, size in (('traceId', 16), ('spanId', 8), ('parentSpanId', 8)):
                    if key in span:
                        raw = bytes.fromhex(span[key])
                        assert len(raw) == size and any(raw), span
                        span[key] = base64.b64encode(raw).decode()
    request = json_format.Parse(json.dumps(body), ExportTraceServiceRequest(), ignore_unknown_fields=False)
    for group in request.resource_spans:
        assert [a.key for a in group.resource.attributes] == ['service.name', 'service.instance.id'], group.resource
        for scope in group.scope_spans:
            assert scope.scope.name == 'mc'
            for span in scope.spans:
                assert span.start_time_unix_nano <= span.end_time_unix_nano and span.kind in (1, 2, 3), span
                names.add(span.name)
                spans += 1
assert spans and {
    'request', 'prefill', 'transfer', 'decode', 'engine', 'put-start', 'write', 'match-prefix', 'read',
    'load-objects'} <= names, names
print(f'{spans} spans parsed, of {len(names)} names')
