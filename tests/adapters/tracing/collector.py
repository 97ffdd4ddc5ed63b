"""A collector in this process: OTLP over gRPC and over HTTP, by OpenTelemetry's own messages."""

import contextlib
import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service


class Collector(service.TraceServiceServicer):
    """Keeps what comes. `refusing`: answers with an error. `hanging`: does not answer."""

    def __init__(self):
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.refusing = self.hanging = False
        self.endpoint = ""
        self._come = threading.Condition()
        self.released = threading.Event()

    def take(self, request):
        with self._come:
            self.requests.append(request)
            self._come.notify_all()

    def Export(self, request, context):  # noqa: N802 (gRPC's)
        if self.hanging:
            self.released.wait(30)
        if self.refusing:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        self.take(request)
        return pb.ExportTraceServiceResponse()

    def spans(self, count):
        """Wait for so many spans, and give all that came."""
        with self._come:
            assert self._come.wait_for(lambda: len(list(self._all())) >= count, 20)
            return list(self._all())

    def _all(self):
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def resource(self):
        return attributes(self.requests[0].resource_spans[0].resource)


@contextlib.contextmanager
def collecting_grpc():
    """A collector that speaks gRPC."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    service.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.stop(None).wait()


@contextlib.contextmanager
def collecting_http():
    """A collector that speaks HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            collector.take(pb.ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(thing):
    """The attributes of a span, an event or a resource."""
    return {each.key: _value(each.value) for each in thing.attributes}


def _value(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
