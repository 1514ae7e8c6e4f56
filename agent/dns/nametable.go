package dns

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// errNameTable is the error of a message that is not a NameTable.
var errNameTable = errors.New("not a NameTable")

// ParseNameTable decodes istiod's NameTable (protobuf): a map from host to ips (1), registry (2),
// shortname (3) and namespace (4). It contains no ports.
func ParseNameTable(message []byte) ([]Name, error) {
	names := []Name{}
	err := fields(message, func(number protowire.Number, entry []byte) error {
		if number != 1 {
			return nil
		}
		var n Name
		var registry string
		err := fields(entry, func(number protowire.Number, value []byte) error {
			switch number {
			case 1:
				n.Host = string(value)
			case 2:
				return fields(value, func(number protowire.Number, value []byte) error {
					switch number {
					case 1:
						if address, err := netip.ParseAddr(string(value)); err == nil {
							n.Addresses = append(n.Addresses, address.Unmap())
						}
					case 2:
						registry = string(value)
					case 3:
						n.ShortName = string(value)
					case 4:
						n.Namespace = string(value)
					}
					return nil
				})
			}
			return nil
		})
		if registry != "Kubernetes" {
			n.ShortName = ""
		}
		names = append(names, n)
		return err
	})
	// sorted, because a map has no order and the first of two equal short names wins
	slices.SortFunc(names, func(a, b Name) int { return cmp.Compare(a.Host, b.Host) })
	return names, err
}

// fields calls found for each length-delimited field of a message.
func fields(message []byte, found func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errNameTable
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return errNameTable
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := found(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}
