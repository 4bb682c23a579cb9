/*
 * Decodes CloudEvents with the npm SDK: a line of JSON in, {headers, body} with
 * the body in base64, is a line of JSON out, {attributes, data} or {error}.
 *
 * The SDK knows the HTTP binding. What NATS does differently is done here: in
 * binary mode "datacontenttype" is a header like the other attributes, and values
 * are percent-encoded. Data that are bytes come out in base64, under "bytes".
 */
import readline from 'node:readline'
import { HTTP } from 'cloudevents'

function toHttp(headers) {
	const structured = /^application\/cloudevents/i.test(headers['Content-Type'] ?? '')
	const result = {}
	for (const [key, value] of Object.entries(headers)) {
		if (structured || !key.startsWith('ce-')) result[key.toLowerCase()] = value
		else if (key === 'ce-datacontenttype') result['content-type'] = decodeURIComponent(value)
		else result[key] = decodeURIComponent(value)
	}
	return result
}

function toEvent(headers, bytes) {
	const http = toHttp(headers)
	const text = bytes.toString()
	const body = Buffer.from(text).equals(bytes) ? text : bytes
	try {
		return HTTP.toEvent({ headers: http, body })
	} catch (error) {
		/* in binary mode the attributes don't depend on a body that isn't what its type says */
		if (!('ce-id' in http) || !(error instanceof SyntaxError)) throw error
		return HTTP.toEvent({ headers: http, body: '' })
	}
}

function decode({ headers, body }) {
	const event = toEvent(headers, Buffer.from(body, 'base64'))
	if (!event.validate()) throw new Error('not valid')
	const { data, data_base64: base64, ...attributes } = event.toJSON()
	if (base64 !== undefined) return { attributes, bytes: base64 }
	return data instanceof Uint8Array ? { attributes, bytes: Buffer.from(data).toString('base64') } : { attributes, data }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
	try {
		console.log(JSON.stringify(decode(JSON.parse(line))))
	} catch (error) {
		console.log(JSON.stringify({ error: String(error.message), details: error.errors }))
	}
}
