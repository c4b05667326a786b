/** What nodes say to gateways beside an answer, as headers that no client needs. */

/** With 421: address of the node that has the session. */
export const OWNER_HEADER = 'x-skein-owner'
/** The code of an error, whatever the dialect makes of it. */
export const CODE_HEADER = 'x-skein-code'
/** With 503: the node takes nothing new from now on. */
export const DRAINING_HEADER = 'x-skein-draining'
/** On what a gateway answers: the node that did. */
export const NODE_HEADER = 'x-skein-node'
