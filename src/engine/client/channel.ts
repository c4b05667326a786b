/**
 * One end of a two-way line of messages between a gateway and a worker. Messages arrive once, and are plain data; those of
 * one request or call arrive in order, and what is small may overtake what is large of others. What carries them is the
 * implementation's business; process-channel.ts is Node's IPC.
 */

export interface Channel<Out, In> {
  /** Dropped when the channel is closed. */
  send(message: Out): void
  /** Null, unless so much has not been read that no more should be made; resolves when that has changed. */
  room?(): Promise<void> | null
  /** The same for what is large. */
  largeRoom?(): Promise<void> | null
  /** Every listener gets every message from now on. */
  onMessage(listener: (message: In) => void): void
  /** Called once, with why, after the last message: "exit code 1", "signal SIGKILL", "closed". */
  onClose(listener: (reason: string) => void): void
  /** Resolves when all that was sent has left and the line is closed on this side. */
  close(): Promise<void>
}
