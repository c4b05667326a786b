/** `skein gateway`: an HTTP entry to a cluster. It has no model; nodes (`skein serve --cluster …`) answer. */
import { SkeinError } from '../errors.ts'
import { packageVersion } from '../files/version.ts'
import { resolveAuth } from '../gateway/access/auth.ts'
import { shutDownOnSignals } from '../gateway/http/shutdown.ts'
import { startFront } from '../host/front.ts'
import { createLogger } from '../host/log.ts'
import { joinCluster } from '../host/membership.ts'
import { membershipChoice, NETWORK_NAMES, networkChoice, refuseEmptyKeys } from '../settings/network.ts'
import { settleServe, valuesOf } from '../settings/serve-settings.ts'
import { settingsCalled } from '../settings/table.ts'
import { lowerHelpers } from '../threads/helpers.ts'
import { defineCommand } from './terminal/command.ts'

export const gateway = defineCommand({
  examples: [['skein gateway --cluster postgres://HOST/skein --port 8080', 'start as many as you like']],
  flags: settingsCalled(...NETWORK_NAMES),
  async run({ given }) {
    lowerHelpers()
    // Variables mean the same as for `serve`. The configuration file is not read, because it is about models.
    const settings = settleServe({ given, words: [] }, null)
    refuseEmptyKeys(settings.raw)
    const args = valuesOf(settings, NETWORK_NAMES)
    const { options, access, logLevel, drainSeconds } = networkChoice(args)
    const cluster = membershipChoice(args)
    if (cluster === null)
      throw new SkeinError(
        'invalid_request',
        'a gateway needs a cluster: --cluster postgres://USER:PASSWORD@HOST/DATABASE (or SKEIN_CLUSTER)',
      )
    const logger = createLogger(logLevel)
    const membership = await joinCluster(cluster, (error) => logger.error({ err: error }, 'the keys stay as they were'))
    const { keyRing } = membership
    const auth = resolveAuth({ ...access, numNamed: keyRing.keys.length })
    keyRing.follow()
    const server = await startFront(membership, { ...options, keys: auth.keys, logger })
    const { app, drain, url, members } = server
    shutDownOnSignals({ app, drain, stopWorkers: async () => {}, timeoutMs: 1000 * drainSeconds }, (code) =>
      process.exit(code),
    )
    const nodes = new Set(members.list.map(({ node }) => node)).size
    process.stdout.write(`skein ${packageVersion()} gateway
cluster  ${nodes} nodes now
address  ${url}
access   ${auth.message}
`)
  },
})
