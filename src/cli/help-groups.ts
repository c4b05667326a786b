/** Which commands and flags --help shows together, in which order, and what to try first. */
import type { HelpTexts } from './help.ts'

export const HELP_GROUPS: Readonly<Record<string, HelpTexts>> = {
  skein: {
    examples: [
      ['skein serve', 'the demo model and a dashboard, at http://127.0.0.1:8000'],
      ['skein chat', 'talk with it, from another terminal'],
      ['skein serve MODEL.pth', 'a model of your own (skein pull NAME fetches one)'],
    ],
    groups: [
      { title: 'Serve', names: ['serve', 'keys', 'config'] },
      { title: 'Use', names: ['chat', 'generate'] },
      { title: 'Models', names: ['pull', 'ls', 'rm', 'inspect', 'convert', 'quantize'] },
      { title: 'Measure and check', names: ['doctor', 'bench', 'logits', 'tokenize'] },
    ],
  },
  'skein serve': {
    examples: [
      ['skein serve', 'the demo model, for this machine only'],
      ['skein serve MODEL.pth --quant int8', 'in half the memory'],
      ['skein serve a=A.pth b=B.pth', 'two models, called a and b'],
      ['skein serve MODEL.pth --host 0.0.0.0', 'for other machines; a key is made and shown'],
    ],
    groups: [
      {
        title: 'Where and for whom',
        names: [
          'host',
          'port',
          'api-key',
          'password',
          'keys',
          'no-auth',
          'allow-origin',
          'allow-host',
          'open-translate',
        ],
      },
      {
        title: 'The model',
        names: [
          'model-name',
          'device',
          'backend',
          'quant',
          'wkv',
          'vocab',
          'lora',
          'lora-init',
          'state',
        ],
      },
      {
        title: 'Several models and workers',
        names: ['replicas', 'gpus', 'pp-devices', 'without-model', 'model-dir', 'max-worker-mb'],
      },
      {
        title: 'How much at once',
        names: ['slots', 'max-waiting', 'max-prompt-tokens', 'step-tokens', 'threads', 'memory-gb'],
      },
      {
        title: 'Sessions and kept states (docs/states.md)',
        names: [
          'data-dir',
          'no-store',
          'durable',
          'prefix-cache-mb',
          'slot-states',
          'memory-states',
          'memory-states-mb',
          'max-sessions',
          'max-sessions-mb',
          'max-turns',
          'session-ttl',
        ],
      },
      {
        title: 'Running it',
        names: ['config', 'log-level', 'drain-seconds', 'metrics-port', 'trace-endpoint'],
      },
    ],
  },
}
