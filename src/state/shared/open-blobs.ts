/** Which storage of blobs an address names. */
import { SkeinError } from '../../errors.ts'
import type { Blobs } from './blobs.ts'
import { FolderBlobs } from './folder-blobs.ts'
import { S3Blobs } from './s3-blobs.ts'

/** Throws invalid_request for what names no storage. */
export function openBlobs(url: string, environment: NodeJS.ProcessEnv = process.env): Blobs {
  const found = URL.canParse(url) ? new URL(url) : null
  if (found?.protocol === 'file:' && found.host === '')
    return new FolderBlobs(decodeURIComponent(found.pathname))
  if (found?.protocol === 's3:' && found.host !== '')
    return S3Blobs.at(found.host, found.pathname, environment)
  throw new SkeinError(
    'invalid_request',
    `${url} names no storage of states: give file:///FOLDER (of a file system that all nodes share) or s3://BUCKET/PREFIX`,
  )
}
