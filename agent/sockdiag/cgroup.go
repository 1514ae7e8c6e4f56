package sockdiag

import "encoding/binary"

// A message goes on with attributes, struct nlattr: length, type, value. Each begins at a multiple
// of four bytes.
const (
	attributeHeader = 4
	attributeCGroup = 21 // INET_DIAG_CGROUP_ID in include/uapi/linux/inet_diag.h, since Linux 5.8
)

// cgroupOf returns the control group among a socket's attributes, 0 if it is not there.
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
