/**
 * OpenTelemetry traces: a span per HTTP request, joined to the caller's trace (traceparent), and below it a span per
 * answer, split into waiting and prompt reading, and token generation. Spans hold names, counts and times, never text.
 * Without `startTracing` these calls do nothing.
 */
import { context, propagation, type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { GenerateRequest } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { onRequestEnd } from '../http/request-end.ts'
import type { Observer, Watch } from '../routing/observed.ts'

const NAME = 'skein'

/** Sends spans to a collector (OTLP over HTTP, "http://127.0.0.1:4318") until the function it returns is called. */
export async function startTracing(endpoint: string, version: string): Promise<() => Promise<void>> {
  // Loaded only if tracing is on.
  const [sdk, { OTLPTraceExporter }, { resourceFromAttributes }] = await Promise.all([
    import('@opentelemetry/sdk-trace-node'),
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/resources'),
  ])
  const exporter = new OTLPTraceExporter({ url: tracesUrl(endpoint) })
  const provider = new sdk.NodeTracerProvider({
    resource: resourceFromAttributes({ 'service.name': NAME, 'service.version': version }),
    spanProcessors: [new sdk.BatchSpanProcessor(exporter)],
  })
  provider.register()
  return () => provider.shutdown()
}

/** Accepts a collector's base URL, or that of its traces. */
function tracesUrl(endpoint: string): string {
  const url = URL.canParse(endpoint) ? new URL(endpoint) : null
  if (url === null || !/^https?:$/.test(url.protocol)) {
    const message = `--trace-endpoint takes the address of a collector, as http://127.0.0.1:4318, not "${endpoint}"`
    throw new SkeinError('invalid_request', message, { param: 'trace-endpoint' })
  }
  if (url.pathname === '/') url.pathname = '/v1/traces'
  return url.href
}

/** Runs everything that handles a request within its span. */
export function traceRequests(app: FastifyInstance): void {
  const spans = new WeakMap<FastifyRequest, Span>()
  app.addHook('onRequest', (request, _reply, done) => {
    const { method, headers, id } = request
    const route = request.routeOptions.url ?? '(no route)'
    const caller = propagation.extract(context.active(), headers)
    const attributes = { 'http.request.method': method, 'http.route': route, 'skein.request_id': id }
    const options = { kind: SpanKind.SERVER, attributes }
    const span = trace.getTracer(NAME).startSpan(`${method} ${route}`, options, caller)
    spans.set(request, span)
    context.with(trace.setSpan(caller, span), done)
  })
  onRequestEnd(app, (request, _reply, { status, isCutOff }) => {
    const span = spans.get(request)
    if (status !== null) span?.setAttribute('http.response.status_code', status)
    if (status !== null && status >= 500) span?.setStatus({ code: SpanStatusCode.ERROR })
    if (isCutOff) span?.addEvent('cut off')
    span?.end()
  })
}

/** Makes a span per answer. Attributes have the names of OpenTelemetry's conventions for generative AI. */
export const tracer: Observer = {
  begin(model, request) {
    const attributes = {
      'gen_ai.operation.name': 'text_completion',
      'gen_ai.provider.name': NAME,
      'gen_ai.request.model': model.id,
      'gen_ai.request.max_tokens': request.maxTokens,
      'gen_ai.request.choice.count': request.n,
      'gen_ai.usage.input_tokens': request.prompt.length,
      'skein.device': model.client.info.model.device,
    }
    const span = trace.getTracer(NAME).startSpan(`generate ${model.id}`, { attributes })
    return watch(span, request)
  },
}

function watch(span: Span, { n }: GenerateRequest): Watch {
  let outputTokens = 0
  let hasText = false
  let numEnded = 0
  return {
    event(event, numDrawn) {
      outputTokens += numDrawn
      if (event.type === 'prompt') {
        span.setAttribute('skein.cached_tokens', event.cachedTokens ?? 0)
        if (event.worker !== undefined) span.setAttribute('skein.worker', event.worker)
        span.addEvent('prompt read')
      } else if (event.type === 'text' && !hasText) {
        hasText = true
        span.addEvent('first text')
      } else if (event.type === 'finish') numEnded++
    },
    end(ending) {
      if (ending.how === 'failed') {
        span.setAttribute('error.type', SkeinError.from(ending.thrown).code)
        span.setStatus({ code: SpanStatusCode.ERROR })
      }
      span.setAttribute('gen_ai.usage.output_tokens', outputTokens)
      if (numEnded < n) span.addEvent('cut short')
      span.end()
    },
  }
}
