/** The secret of a data folder: made once, read ever after. Namespaces of tenants are keyed with it. */
import { randomBytes } from 'node:crypto'
import { linkSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { makeFolder } from '../../files/make-folder.ts'
import { SECRET_BYTES } from '../namespace.ts'
import { realFiles } from './files.ts'

/** Reads the secret, or makes it. If several processes make it at once, one wins and all return the same. */
export function openSecret(folder: string): Uint8Array {
  makeFolder(folder, 0o700)
  const path = join(folder, 'secret')
  return read(path) ?? create(folder, path)
}

function read(path: string): Uint8Array | null {
  let secret: Uint8Array
  try {
    secret = readFileSync(path)
  } catch (error) {
    // Errors of the file system carry a code.
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null
    throw error
  }
  if (secret.length === SECRET_BYTES) return secret
  const message = `${path} has ${secret.length} bytes, not ${SECRET_BYTES}; restore it, or remove the data folder with its sessions`
  throw new SkeinError('state_unavailable', message)
}

function create(folder: string, path: string): Uint8Array {
  const temporary = `${path}-${process.pid}`
  realFiles.remove(temporary)
  realFiles.write(temporary, [randomBytes(SECRET_BYTES)])
  try {
    linkSync(temporary, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    realFiles.remove(temporary)
  }
  realFiles.syncFolder(folder)
  return read(path)!
}
