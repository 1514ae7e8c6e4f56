package xds

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Binary format of acl(5) as an extended attribute, from linux/posix_acl_xattr.h.
const (
	aclAttribute = "system.posix_acl_access"
	aclVersion   = 2
	aclReadWrite = 6
	aclNobody    = ^uint32(0) // ID in entries of the owner, the group, the mask and others

	aclOwner, aclGroup, aclNamedGroup, aclMask, aclOther = 0x01, 0x04, 0x08, 0x10, 0x20
)

// letGroup adds an access control list to a file of mode 0660, which lets another group read and
// write the file.
func letGroup(path string, group int) error {
	acl := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, entry := range []struct {
		tag, rights uint16
		id          uint32
	}{{aclOwner, aclReadWrite, aclNobody}, {aclGroup, aclReadWrite, aclNobody},
		{aclNamedGroup, aclReadWrite, uint32(group)}, {aclMask, aclReadWrite, aclNobody},
		{aclOther, 0, aclNobody}} {
		acl = binary.LittleEndian.AppendUint16(acl, entry.tag)
		acl = binary.LittleEndian.AppendUint16(acl, entry.rights)
		acl = binary.LittleEndian.AppendUint32(acl, entry.id)
	}
	if err := unix.Setxattr(path, aclAttribute, acl, 0); err != nil {
		return fmt.Errorf("set an access control list that permits group %d: %w", group,
			err)
	}
	return nil
}
