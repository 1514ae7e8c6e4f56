package relay

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// response holds the fields of a DiscoveryResponse or DeltaDiscoveryResponse that a session needs.
// Its byte slices refer to the encoded message.
type response struct {
	typeURL, version, nonce string
	stored                  bool // the response was read from the cache file
	resources               []resource
	removed                 []string
}

// resource is one resource of a response. In the state of the world its version is that of the
// response.
type resource struct {
	name, version string
	body          []byte // the resource's google.protobuf.Any, encoded
	// SHA-256 checksum of the body that the upstream server sent, if the relay has replaced the
	// body; nil otherwise
	source []byte
}

// Field numbers of the messages that parseResponse reads.
const (
	responseVersion   = 1 // the version, which has the same field number in both kinds of responses
	responseResources = 2
	responseTypeURL   = 4
	responseNonce     = 5
	// field number of the names of removed resources, only in incremental responses
	responseRemoved = 6

	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3
	resourceSource  = 1000 // field number of resource.source, which only the cache file contains
	anyValue        = 2
	// field number of the name in the resource itself, the same for all xDS types
	nameInside = 1
)

// parseResponse scans an encoded response without decoding its resources. Only a response from the
// cache file (stored) may have the field resourceSource: an upstream server cannot set it.
func parseResponse(message []byte, delta, stored bool) (*response, error) {
	r := &response{stored: stored}
	err := fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case responseVersion:
			r.version = string(value)
		case responseTypeURL:
			r.typeURL = string(value)
		case responseNonce:
			r.nonce = string(value)
		case responseRemoved:
			if delta {
				r.removed = append(r.removed, string(value))
			}
		case responseResources:
			one, err := parseResource(value, delta, stored)
			if err != nil {
				return err
			}
			r.resources = append(r.resources, one)
		}
		if len(r.resources)+len(r.removed) > maxResources {
			return fmt.Errorf("the response has more than %d resources", maxResources)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("response from upstream: %w", err)
	}
	if !delta {
		for i := range r.resources {
			r.resources[i].version = r.version
		}
	}
	return r, nil
}

func parseResource(message []byte, delta, stored bool) (resource, error) {
	if delta {
		var r resource
		err := fields(message, func(number protowire.Number, value []byte) error {
			switch number {
			case resourceName:
				r.name = string(value)
			case resourceVersion:
				r.version = string(value)
			case resourceBody:
				r.body = value
			case resourceSource:
				if stored {
					r.source = value
				}
			}
			return nil
		})
		return r, err
	}
	r := resource{body: message}
	err := fields(message, func(number protowire.Number, value []byte) error {
		if number != anyValue {
			return nil
		}
		return fields(value, func(number protowire.Number, value []byte) error {
			if number == nameInside {
				r.name = string(value)
			}
			return nil
		})
	})
	return r, err
}

// fields calls found for each length-delimited field of a message.
func fields(message []byte, found func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errors.New("not a protobuf message")
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return errors.New("not a protobuf message")
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return errors.New("not a protobuf message")
		}
		if err := found(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// encode returns the encoded response.
func (r *response) encode(delta bool) []byte {
	size := recordOverhead + len(r.typeURL) + len(r.version) + len(r.nonce)
	for _, one := range r.resources {
		size += one.size()
	}
	b, w := make([]byte, 0, size), []byte(nil)
	add := func(number protowire.Number, value []byte) { b = appendField(b, number, value) }
	add(responseVersion, []byte(r.version))
	add(responseTypeURL, []byte(r.typeURL))
	add(responseNonce, []byte(r.nonce))
	for _, one := range r.resources {
		if !delta {
			add(responseResources, one.body)
			continue
		}
		w = appendField(w[:0], resourceVersion, []byte(one.version))
		w = appendField(w, resourceBody, one.body)
		w = appendField(w, resourceName, []byte(one.name))
		if r.stored && one.source != nil {
			w = appendField(w, resourceSource, one.source)
		}
		add(responseResources, w)
	}
	for _, name := range r.removed {
		add(responseRemoved, []byte(name))
	}
	return b
}

func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}
