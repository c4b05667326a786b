/** A child process that sends back every message; after `shutdown` it exits with code 3. */
process.on('message', (message) => {
  process.send(message, () => {
    if (message.type === 'shutdown') process.exit(3)
  })
})
