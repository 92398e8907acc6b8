// A js-libp2p node that does what it is told on standard input, one JSON object a line, and tells what happens likewise.
// node --import ./polyfill.mjs peer.mjs SECRET_HEX
import readline from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { privateKeyFromRaw } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const tell = (event, more = {}) => console.log(JSON.stringify({ event, ...more }))

const node = await createLibp2p({
  privateKey: privateKeyFromRaw(Buffer.from(process.argv[2], 'hex')),
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), ping: ping(), pubsub: gossipsub({ allowPublishToZeroTopicPeers: true }) }
})
const { pubsub } = node.services

pubsub.addEventListener('message', ({ detail }) =>
  tell('message', { topic: detail.topic, data: Buffer.from(detail.data).toString('hex') }))
pubsub.addEventListener('gossipsub:graft', ({ detail }) => tell('graft', { topic: detail.topic, peer: detail.peerId }))
node.addEventListener('peer:identify', ({ detail }) =>
  tell('identified', { peer: detail.peerId.toString(), agent: detail.agentVersion, protocols: detail.protocols }))

const commands = {
  dial: async ({ address }) => { await node.dial(multiaddr(address)); tell('dialled') },
  ping: async ({ address }) => tell('pinged', { ms: await node.services.ping.ping(multiaddr(address)) }),
  subscribe: async ({ topic }) => { pubsub.subscribe(topic); tell('subscribed') },
  publish: async ({ topic, data }) => {
    const { recipients } = await pubsub.publish(topic, Buffer.from(data, 'hex'))
    tell('published', { recipients: recipients.length })
  },
  stop: async () => { await node.stop(); process.exit(0) }
}

tell('ready', { peer: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) })
for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  commands[command.do](command).catch((error) => tell('failed', { why: String(error) }))
}
