/** DELETE /v1/requests/{id}: ends a call of the caller's own, by the id of its reply or the `request_id` it was given. */
import { SkeinError } from '../../errors.ts'
import type { LiveCalls } from '../live-calls.ts'
import { del, json, type Route } from '../route.ts'

export function cancelRoute(live: LiveCalls): Route {
  const path = '/v1/requests/:id'
  const route = del(path, 'End a request; it fails with 409', ({ params, tenant }) => {
    const id = params.id!
    const isLive = live.end(tenant, id, 'stopped')
    // One that is paused, or that a resume has not read from yet, is forgotten.
    if (live.drop(tenant, id) || isLive) return json({ status: 'cancelled', request_id: id })
    throw new SkeinError('not_found', 'no request of that id is under way or paused', {
      param: 'id',
    })
  })
  return { ...route, inCluster: 'every' }
}
