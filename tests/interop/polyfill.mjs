// Node 20 lacks what js-libp2p takes from Node 22.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new this((ok, no) => { resolve = ok; reject = no })
  return { promise, resolve, reject }
}
