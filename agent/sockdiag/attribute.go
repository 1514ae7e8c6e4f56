package sockdiag

import "encoding/binary"

// Attributes (struct nlattr) follow a message: length, type, value. Each is aligned to four bytes.
const (
	attributeHeader = 4
	// INET_DIAG_* in include/uapi/linux/inet_diag.h
	attributeIPv6Only = 11
	attributeCGroup   = 21 // since Linux 5.8
)

// cgroupOf returns the control group among a socket's attributes, or 0.
func cgroupOf(attributes []byte) uint64 {
	if value := attribute(attributes, attributeCGroup, 8); value != nil {
		return binary.NativeEndian.Uint64(value)
	}
	return 0
}

// ipv6Only reports whether the attributes are those of a socket with IPV6_V6ONLY.
func ipv6Only(attributes []byte) bool {
	value := attribute(attributes, attributeIPv6Only, 1)
	return len(value) > 0 && value[0] != 0
}

// attribute returns the value of an attribute that has the length, or nil.
func attribute(attributes []byte, wanted uint16, size int) []byte {
	for len(attributes) >= attributeHeader {
		length := int(binary.NativeEndian.Uint16(attributes))
		kind := binary.NativeEndian.Uint16(attributes[2:])
		if length < attributeHeader || length > len(attributes) {
			return nil
		}
		if value := attributes[attributeHeader:length]; kind == wanted && len(value) == size {
			return value
		}
		attributes = attributes[min((length+3)&^3, len(attributes)):]
	}
	return nil
}
