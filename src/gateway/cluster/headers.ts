/** Headers of a node's answer that are for gateways, not clients. */

/** With 421: URL of the node that has the session. */
export const OWNER_HEADER = 'x-skein-owner'
/** The code of an error, in every dialect. */
export const CODE_HEADER = 'x-skein-code'
/** With 503: the node accepts no new requests. */
export const DRAINING_HEADER = 'x-skein-draining'
/** Set by a gateway: the node that answered. */
export const NODE_HEADER = 'x-skein-node'
