package wasmtest

import "encoding/binary"

// Constants of the proxy-wasm ABI: types of header maps.
const (
	RequestHeaderMap  = 0
	ResponseHeaderMap = 2

	downstream = 2 // stream type of the client's connection
)

// HeaderModule returns a Wasm HTTP filter that adds a header to each request or response; headers
// is RequestHeaderMap or ResponseHeaderMap.
func HeaderModule(headers byte, name, value string) []byte {
	const valueAt = 256 // memory address of value; that of name is 0
	callback := "proxy_on_request_headers"
	if headers == ResponseHeaderMap {
		callback = "proxy_on_response_headers"
	}
	body := []byte{0}
	for _, number := range []int{int(headers), 0, len(name), valueAt, len(value)} {
		body = append(append(body, 0x41), signed(number)...) // opcode i32.const
	}
	// opcodes: call function 0, drop its result, return 0 (continue)
	body = append(body, 0x10, 0, 0x1a, 0x41, 0, 0x0b)
	return assemble("proxy_add_header_map_value", 5, callback, 3, body,
		segment(0, name), segment(valueAt, value))
}

// ConnectionClosingModule returns a Wasm network filter that closes each new connection.
func ConnectionClosingModule() []byte {
	// The callback calls proxy_close_stream and returns 1 (stop iteration).
	return assemble("proxy_close_stream", 1, "proxy_on_new_connection", 1,
		[]byte{0, 0x41, downstream, 0x10, 0, 0x1a, 0x41, 1, 0x0b})
}

// TrappingModule returns a Wasm HTTP filter that traps at each request.
func TrappingModule() []byte {
	return assemble("proxy_close_stream", 1, "proxy_on_request_headers", 3, []byte{0, 0x00, 0x0b})
}

// assemble returns a Wasm module that imports one host function and exports one callback.
// importedParameters and parameters are their numbers of parameters. All parameters and results
// have the type i32. body is the code of the callback.
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
	// function types of the imported function, the callback, malloc and proxy_abi_version_0_2_1
	out = append(out, section(1, function(importedParameters), function(parameters), function(1),
		[]byte{0x60, 0, 0})...)
	out = append(out, section(2, append(append(text("env"), text(imported)...), 0, 0))...)
	out = append(out, section(3, []byte{1}, []byte{2}, []byte{3})...)
	out = append(out, section(5, []byte{0, 1})...)
	out = append(out, section(7, export("memory", 2, 0), export(callback, 0, 1),
		export("malloc", 0, 2), export("proxy_abi_version_0_2_1", 0, 3))...)
	malloc := []byte{0, 0x41, 0x80, 0x08, 0x0b} // returns address 1024 for every call
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

// signed encodes a non-negative number as signed LEB128.
func signed(n int) (all []byte) {
	for n >= 64 {
		all, n = append(all, byte(n&0x7f)|0x80), n>>7
	}
	return append(all, byte(n))
}
