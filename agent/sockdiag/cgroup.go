package sockdiag

import "encoding/binary"

// Attributes (struct nlattr) follow a message: length, type, value. Each is aligned to four bytes.
const (
	attributeHeader = 4
	attributeCGroup = 21 // INET_DIAG_CGROUP_ID in include/uapi/linux/inet_diag.h, since Linux 5.8
)

// cgroupOf returns the control group among a socket's attributes, or 0.
func cgroupOf(attributes []byte) uint64 {
	for len(attributes) >= attributeHeader {
		length := int(binary.NativeEndian.Uint16(attributes))
		kind := binary.NativeEndian.Uint16(attributes[2:])
		if length < attributeHeader || length > len(attributes) {
			return 0
		}
		if value := attributes[attributeHeader:length]; kind == attributeCGroup && len(value) == 8 {
			return binary.NativeEndian.Uint64(value)
		}
		attributes = attributes[min((length+3)&^3, len(attributes)):]
	}
	return 0
}
