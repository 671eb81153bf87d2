// Datagrams of Node.js, which names no times (`datagrams.js ADDRESS PORT COUNT WAY`): in turns with whoever answers, then as many at
// once, and ends by `exit`, or because its socket is closed. Each answer must be what was sent.
const dgram = require('dgram')

const [address, port, count, way] = [process.argv[2], +process.argv[3], +process.argv[4], process.argv[5]]
const socket = dgram.createSocket(address.includes(':') ? 'udp6' : 'udp4')
let [sent, received] = [0, 0]

const payload = number => Buffer.from(`datagram ${number}`)

function send(done) {
  socket.send(payload(sent++), port, address, error => {
    if (error) throw error
    done?.()
  })
}

socket.on('message', message => {
  if (!message.equals(payload(received))) throw new Error(`${message} is not the answer to ${payload(received)}`)
  received += 1
  if (received < count) {
    send()
  } else if (received === count) {
    let left = count
    for (let number = 0; number < count; number++) send(() => --left || last())
  }
})

function last() {
  console.log(`${received} answers, ${sent} sent`)
  if (way === 'exit') process.exit(0)
  socket.close()
}

send()
