package wasmtest

import "encoding/binary"

// Kinds of maps of headers, by the ABI of proxy-wasm.
const (
	RequestHeaders  = 0
	ResponseHeaders = 2

	downstream = 2 // kind of a stream
)

// Tagger returns a Wasm module for requests that adds a header to each request or response.
func Tagger(headers byte, name, value string) []byte {
	const valueAt = 256 // address of value; name is at address 0
	callback := "proxy_on_request_headers"
	if headers == ResponseHeaders {
		callback = "proxy_on_response_headers"
	}
	body := []byte{0}
	for _, number := range []int{int(headers), 0, len(name), valueAt, len(value)} {
		body = append(append(body, 0x41), signed(number)...) // i32.const
	}
	body = append(body, 0x10, 0, 0x1a, 0x41, 0, 0x0b) // call 0, drop, return 0 (continue)
	return assemble("proxy_add_header_map_value", 5, callback, 3, body,
		segment(0, name), segment(valueAt, value))
}

// Closer returns a Wasm module for connections that closes each one at once.
func Closer() []byte {
	// proxy_on_new_connection returns 1: stop
	return assemble("proxy_close_stream", 1, "proxy_on_new_connection", 1,
		[]byte{0, 0x41, downstream, 0x10, 0, 0x1a, 0x41, 1, 0x0b})
}

// Failing returns a Wasm module whose VM fails at each request.
func Failing() []byte {
	return assemble("proxy_close_stream", 1, "proxy_on_request_headers", 3, []byte{0, 0x00, 0x0b})
}

// assemble returns a module that imports one function of the host, of i32 parameters and an i32
// result, and exports one callback with the same kind of signature and the given body.
func assemble(imported string, importedParameters byte, callback string, parameters byte,
	body []byte, segments ...[]byte) []byte {
	integers := func(n byte) (all []byte) {
		for range n {
			all = append(all, 0x7f)
		}
		return all
	}
	function := func(n byte) []byte {
		return append(append([]byte{0x60, n}, integers(n)...), 1, 0x7f)
	}
	export := func(name string, kind, index byte) []byte { return append(text(name), kind, index) }
	out := []byte("\x00asm\x01\x00\x00\x00")
	// types: the imported function, the callback, malloc, and the version of the ABI
	out = append(out, section(1, function(importedParameters), function(parameters), function(1),
		[]byte{0x60, 0, 0})...)
	out = append(out, section(2, append(append(text("env"), text(imported)...), 0, 0))...)
	out = append(out, section(3, []byte{1}, []byte{2}, []byte{3})...)
	out = append(out, section(5, []byte{0, 1})...)
	out = append(out, section(7, export("memory", 2, 0), export(callback, 0, 1),
		export("malloc", 0, 2), export("proxy_abi_version_0_2_1", 0, 3))...)
	malloc := []byte{0, 0x41, 0x80, 0x08, 0x0b} // always address 1024
	out = append(out, section(10, sized(body), sized(malloc), sized([]byte{0, 0x0b}))...)
	if len(segments) > 0 {
		out = append(out, section(11, segments...)...)
	}
	return out
}

func section(id byte, items ...[]byte) []byte {
	content := binary.AppendUvarint(nil, uint64(len(items)))
	for _, item := range items {
		content = append(content, item...)
	}
	return append([]byte{id}, sized(content)...)
}

func segment(address int, content string) []byte {
	head := append([]byte{0, 0x41}, signed(address)...)
	return append(append(head, 0x0b), text(content)...)
}

func sized(content []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(content))), content...)
}

func text(s string) []byte { return sized([]byte(s)) }

// signed encodes a small number as LEB128 with a sign.
func signed(n int) (all []byte) {
	for n >= 64 {
		all, n = append(all, byte(n&0x7f)|0x80), n>>7
	}
	return append(all, byte(n))
}
